"""Small mechanisms without domain knowledge. Every other package may use them."""
