"""What can be decided of models, of who is asked, and of what they may cost, as rows."""

from typing import Final

from comity.config.budgets import BUDGETS
from comity.config.kinds import DURATION, TEXT, one_of
from comity.config.models import MODEL_IDS, MODELS, ROUTES
from comity.config.setting import Setting

INFERENCE: Final = (
    Setting("models", "", MODELS, "models that can be asked"),
    Setting("default", "inference", TEXT, "the model for what has no route", "inference_default"),
    Setting(
        "fallbacks",
        "inference",
        MODEL_IDS,
        "models that are asked where the chosen one fails, in this order",
        "inference_fallbacks",
    ),
    Setting(
        "sampling",
        "inference",
        one_of("ask", "deny", "allow"),
        "whether the gateway's models answer `sampling/createMessage` of servers whose client "
        "cannot: `ask` asks people each time",
        "inference_sampling",
    ),
    Setting("deadline", "inference", DURATION, "how long a model may take", "inference_deadline"),
    Setting("routes", "inference", ROUTES, "which model is asked for what", "inference_routes"),
    Setting("budgets", "", BUDGETS, "what parties may spend on models in a day"),
)
