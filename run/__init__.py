"""What a run needs around the loop, and nobody studies: startup, checkpoint, directory, memory, signals."""
