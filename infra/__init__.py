"""Below the core: errors, devices, number formats, processes."""
