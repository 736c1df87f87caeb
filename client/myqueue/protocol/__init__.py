"""The contract between servers, library and load balancer. No IO."""
