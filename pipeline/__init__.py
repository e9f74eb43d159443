"""What the services share: the wire, the bus, versions, weights, and the model. Loads nothing."""
