"""The whole system on one machine: PostgreSQL, managers, brokers and nginx, kept running by one runner per home."""
