"""The sandbox of server processes: levels, rules, resources and the network proxy."""
