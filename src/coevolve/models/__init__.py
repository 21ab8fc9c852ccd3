"""What a policy is: its model, weights, adapters and tokenizer."""
