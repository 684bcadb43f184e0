"""Small networks on a target's last hidden state, which draft for it."""
