"""Other systems, each started from what is installed and measured through its own Python client."""
