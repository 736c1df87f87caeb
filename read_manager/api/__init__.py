"""HTTP routes of the read manager."""
