"""HTTP routes of the write manager: public ones behind the load balancer, internal ones for the cluster."""
