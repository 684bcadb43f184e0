"""Networks with rotary positions by their own names, which runs, gin files and users have."""
