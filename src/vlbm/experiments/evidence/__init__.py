"""What a decision rests on beside the estimates: the log, the imagined episodes and the model, in summary."""
