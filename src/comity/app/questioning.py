"""What servers ask of people, as the settings say: callbacks, forms, and permissions."""

from collections.abc import Mapping
from dataclasses import dataclass

from comity.app.asking import Asking
from comity.app.caring import Caring
from comity.app.journaling import Journaling
from comity.config import Settings
from comity.kernel.administration import Administration
from comity.kernel.callbacks import Callbacks
from comity.kernel.elicited import Elicited
from comity.kernel.inquiries import Inquiries
from comity.kernel.live.sampling import Sampling
from comity.kernel.permission_asks import PermissionAsks
from comity.kernel.pulse import Speaking
from comity.kernel.question import Errand, Question
from comity.kernel.terms import STAND_IN
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import CLIENT_CAPABILITY, SAMPLE


@dataclass(slots=True)
class AskedBack:
    """Whatever a server asks amid a call, each by whoever knows its kind."""

    callbacks: Callbacks
    elicited: Elicited
    inquiries: Inquiries
    # Where there are models.
    sampling: Sampling | None = None

    @property
    def stand_ins(self) -> Mapping[str, object]:
        found = dict(STAND_IN) if self.elicited.stand_in else {}
        if self.sampling is not None and self.sampling.stands_in:
            found[CLIENT_CAPABILITY[SAMPLE]] = {}
        return found

    def called_back(self, link: Speaking, frame: Frame, amid: Errand | None) -> bool:
        return self.callbacks.called_back(link, frame, amid)

    def instead(self, question: Question, frame: Frame) -> bool:
        if self.sampling is not None and self.sampling.instead(question, frame):
            return True
        return self.elicited.instead(question, frame)


def have_questions_asked(
    settings: Settings,
    caring: Caring,
    asking: Asking,
    journaling: Journaling,
    administration: Administration,
) -> None:
    """Put into the inbox what servers ask; for servers that are admitted from now on."""
    approvals, chores = asking.approvals, asking.holding.chores
    inquiries = Inquiries(approvals, chores, journaling.redact)
    stand_in = settings.ask_elicitations == "inbox"
    elicited = Elicited(inquiries, settings.ask_expires, stand_in=stand_in)
    caring.questions = AskedBack(Callbacks(inquiries), elicited, inquiries)
    caring.asked = PermissionAsks(approvals, caring.tools.permits, administration, chores)
