"""The broker: keeps partitions, appends to them and reads from them."""
