"""How a program that a model wrote is contained. Knows no task. Kept empty: a fork server imports it."""
