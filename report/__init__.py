"""One HTML file that tells a run; `python -m report RUN`."""
