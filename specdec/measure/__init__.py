"""One laboratory: costs, speed, alpha, quality, and how results are written and shown."""
