"""The wire contract: what servers, library and load balancer agree on. Nothing in here does IO."""
