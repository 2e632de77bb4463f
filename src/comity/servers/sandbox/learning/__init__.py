"""`comity servers learn`: runs a server with wide rights and proposes its permissions."""
