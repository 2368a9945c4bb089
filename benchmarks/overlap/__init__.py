"""How much of what overlap can save is saved, in TensorFlow's graphs and MXNet's engine."""
