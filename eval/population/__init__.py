"""What a population is worth: `python -m eval.population.heldout` and the other commands here."""
