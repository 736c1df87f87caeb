"""A read manager: stateless, reads a standby, calls the write manager when no standby has the answer."""
