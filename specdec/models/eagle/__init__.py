"""One layer on a target's hidden states, which drafts for it autoregressively."""
