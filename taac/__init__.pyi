from taac.api import Checked as Checked
from taac.api import Compared as Compared
from taac.api import Controller as Controller
from taac.api import Evaluation as Evaluation
from taac.api import Interrupted as Interrupted
from taac.api import Points as Points
from taac.api import Report as Report
from taac.api import Run as Run
from taac.api import State as State
from taac.api import StopWhen as StopWhen
from taac.api import TaacError as TaacError
from taac.api import TrainedAgent as TrainedAgent
from taac.api import check as check
from taac.api import compare as compare
from taac.api import evaluate as evaluate
from taac.api import load as load
from taac.api import report as report
from taac.api import train as train

API: list[str]
__version__: str
