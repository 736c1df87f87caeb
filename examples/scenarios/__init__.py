"""Producers that replay log files and consumers that write down what they read: 2P2C, 5P3C, and by hand.

examples/2P2C                 starts all processes, waits, and checks what every consumer has read
examples/run-producer --id 1 --topics T1 T2 --broker HOST:PORT --log-dir DIR
examples/run-consumer --id 1 --topics T1 T2 --broker HOST:PORT --log-dir DIR
"""
