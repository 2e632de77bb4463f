"""What servers ask of people, as the settings say: callbacks, forms, and permissions."""

from dataclasses import dataclass

from comity.app.asking import Asking
from comity.app.caring import Caring
from comity.app.journaling import Journaling
from comity.config import Settings
from comity.kernel.administration import Administration
from comity.kernel.callbacks import Callbacks
from comity.kernel.elicited import Elicited
from comity.kernel.inquiries import Inquiries
from comity.kernel.permission_asks import PermissionAsks
from comity.kernel.pulse import Speaking
from comity.kernel.question import Errand, Question
from comity.wire.jsonrpc import Frame


@dataclass(frozen=True, slots=True)
class AskedBack:
    """Whatever a server asks amid a call, each by whoever knows its kind."""

    callbacks: Callbacks
    elicited: Elicited

    @property
    def stand_in(self) -> bool:
        return self.elicited.stand_in

    def called_back(self, link: Speaking, frame: Frame, amid: Errand | None) -> bool:
        return self.callbacks.called_back(link, frame, amid)

    def instead(self, question: Question, frame: Frame) -> bool:
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
    caring.questions = AskedBack(Callbacks(inquiries), elicited)
    caring.asked = PermissionAsks(approvals, caring.tools.permits, administration, chores)
