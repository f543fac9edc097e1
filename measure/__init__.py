"""What people study of a run: the measures of a step, probes of what never changes, monitors of drift."""
