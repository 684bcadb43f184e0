"""Transformers with rotary positions (Llama, Qwen, Gemma, T5Gemma): one network with settings."""
