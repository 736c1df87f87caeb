"""A whole cluster in one thread: brokers, network, disks and clocks made of a seed, judged after every step."""
