"""Will it help me? What an exchange would take on links that are not here.

    jaxcomp predict --model resnet50 --bandwidth 1Gbit --workers 8

`methods` builds the methods, `alone` and `measuring` time what one worker computes,
`on_target` models that for a GPU, and `predicting` adds what `jaxcomp.cost` says of the
messages.
"""

from jaxcomp.prediction.predicting import Prediction, Row, predict

__all__ = ["Prediction", "Row", "predict"]
