"""What a run needs and nobody studies."""
