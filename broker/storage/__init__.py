"""What is on the disk: a journal for all partitions of a broker, and files per partition."""
