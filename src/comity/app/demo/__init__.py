"""`comity demo`: a gateway with sample servers, agents and traffic."""
