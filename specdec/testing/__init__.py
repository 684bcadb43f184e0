"""What proves a decode lossless: an exact oracle, toy models, parts broken on purpose."""
