"""The composition root: it builds the parts of the gateway and connects them."""
