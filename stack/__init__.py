"""The whole system on one machine: PostgreSQL, managers, brokers and nginx, supervised by one runner per home."""
