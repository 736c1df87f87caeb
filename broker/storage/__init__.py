"""What is on the disk: one SQLite file for all partitions of a broker."""
