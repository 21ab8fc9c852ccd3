"""Generated worlds: problems without end, their answers and the words they are made of."""
