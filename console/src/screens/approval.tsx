// One approval request, and its answer.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useId, useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, To } from "../navigate";
import { useSession } from "../session";
import { areShortcutsOn } from "../ui/shortcuts";
import { Diff } from "../ui/diff";
import { defaults, SchemaFields, type Schema, type Values } from "../ui/form";
import { OutcomeChip } from "../ui/outcomes";
import { Chip, Code, Confirm, CopyButton, Dialog, Facts, Loading, Names, Problem, Risk, Time, useNow, Words } from "../ui/parts";
import { brief, duration, json, sentence, visible } from "../ui/text";
import { APPROVAL_TONES, approvalWord } from "./approval-tones";

type Detail = Schemas["BriefingView"];
type Verdict = "accept" | "decline";

const WITH_CONTENT = new Set(["input", "select"]);

const RESULT_INTERVAL_MS = 1_000;
/** How long after an answer its result is waited for. A call that takes longer shows it when the page is opened again. */
const RESULT_WAIT_MS = 60_000;

/** Whether the call of an approved request may still run, or its result is on its way from another node. */
const awaitsResult = (request: Detail | undefined) => request?.kind === "confirm" && ["approved", "consumed"].includes(request.state) && request.result === null;

export function ApprovalDetail({ id, onAnswered, onNext, onBack }: { id: string; onAnswered: () => void; onNext?: () => void; onBack: () => void }) {
  const [answeredAt, setAnsweredAt] = useState<number | null>(null);
  const found = useQuery({
    queryKey: ["approvals", "one", id],
    queryFn: () => data(api.GET("/api/approvals/{id}", { params: { path: { id } } })),
    refetchInterval: (query) => (answeredAt !== null && awaitsResult(query.state.data) && Date.now() - answeredAt < RESULT_WAIT_MS ? RESULT_INTERVAL_MS : false),
  });
  if (found.isPending) return <Loading what="the request" />;
  if (found.error || !found.data)
    return (
      <div className="list">
        <Problem error={found.error} retry={() => void found.refetch()} />
        <button type="button" className="button" onClick={onBack}>
          Back to the list
        </button>
      </div>
    );
  const request = found.data;
  return (
    <article className="approval" aria-label="Approval request">
      <Decide
        request={request}
        onAnswered={() => {
          setAnsweredAt(Date.now());
          onAnswered();
        }}
        onBack={onBack}
      />
      {(request.answers.length > 0 || request.ended_at) && <Ending request={request} onNext={answeredAt === null ? undefined : onNext} />}
      <section className="card" aria-label="What it does">
        <h2>What it does</h2>
        {request.tool && <p><Words>{describe(request)}</Words></p>}
        {request.tool && !request.is_tool_listed && request.may_answer && (
          <p className="note">The server is not ready. These facts are from the time of the request.</p>
        )}
        {request.risk_reasons.length > 0 && (
          <div className="note warn">
            <b>Why {request.risk ?? "this risk"}</b>
            <ul>
              {request.risk_reasons.map((each, index) => (
                <li key={index}><Words>{sentence(each)}</Words></li>
              ))}
            </ul>
          </div>
        )}
        {request.reason && <p>Reason of the agent: <Words>{request.reason}</Words></p>}
        {request.arguments !== null && request.arguments !== undefined && (
          <>
            <div className="head">
              <h3>Arguments</h3>
              <CopyButton text={json(request.arguments)} />
            </div>
            <Code label="Arguments" value={request.arguments} />
          </>
        )}
        {request.message && request.message !== request.summary && <div className="note"><Words>{request.message}</Words></div>}
      </section>
      {request.changes.length > 0 && (
        <section className="card" aria-label="Changed definition">
          <h2>The definition of this tool changed</h2>
          {request.changes.map((each) => (
            <div key={each.at} className="list">
              <h3 className="mono">{visible(each.at)}</h3>
              <Diff label={`Change of ${visible(each.at)}`} before={each.before ?? ""} after={each.after ?? ""} />
            </div>
          ))}
        </section>
      )}
      <div className="grid">
        <section className="card" aria-label="Who asks">
          <h2>Who asks</h2>
          <Facts
            rows={[
              ["Principal", <Names key="p">{request.requester}</Names>],
              ["Client", request.client && <Words>{request.client}</Words>],
              ["Model", request.model && <Words>{request.model}</Words>],
              ["Server", <To key="s" path={at.server(request.server)}>{visible(request.server)}</To>],
              ["Asked", <Time key="t" at={request.created_at} />],
              ["Expires", request.ended_at ? null : <Time key="e" at={request.expires_at} />],
              ["Can answer", (request.approver_names ?? []).length > 0 ? <Names>{request.approver_names!.join(", ")}</Names> : request.approvers && <Words>{request.approvers}</Words>],
              ["Trace", request.trace && <To path={at.trace(request.trace)}>Open in the audit log</To>],
            ]}
          />
        </section>
        <section className="card" aria-label="Before this">
          <h2>Decided before</h2>
          {request.similar && <p><Words>{sentence(request.similar)}</Words></p>}
          {request.earlier_requests.length === 0 && !request.similar && <p className="soft">No earlier decision about this tool and principal.</p>}
          <ul className="rowlist">
            {request.earlier_requests.map((each) => (
              <li key={each.id}>
                <Chip tone={APPROVAL_TONES[each.state] ?? ""}>{approvalWord(each.state)}</Chip>
                <span className="small soft">
                  {each.answers.map((answer) => visible(answer.by)).join(", ")}, <To path={at.approval(each.id)}><Time at={each.created_at} /></To>
                  {each.answers.map((answer, index) => answer.reason && <span key={index}>: <Words>{answer.reason}</Words></span>)}
                </span>
              </li>
            ))}
          </ul>
          {request.recent_calls.length > 0 && <h3>Last calls of this principal</h3>}
          <ul className="rowlist">
            {request.recent_calls.map((each, index) => (
              <li key={index}>
                <span className="mono anywhere">{visible(`${each.server}/${each.tool}`)}</span>
                <span className="small soft">{each.result.toLowerCase()}, <Time at={each.at} /></span>
              </li>
            ))}
          </ul>
        </section>
      </div>
    </article>
  );
}

/** What the server says of the tool. That it says nothing is known only while its tools are. */
function describe(request: Detail): string {
  if (request.tool_description === null) return "Comity does not know now what this tool does, because its server is not ready.";
  return request.tool_description ? brief(request.tool_description, 1200) : "The server gives no description of this tool.";
}

const VERDICTS: Record<string, string> = { accept: "approved", decline: "denied", cancel: "cancelled", defer: "deferred" };

/** Who gave an answer, and when. */
function AnswerLine({ answer }: { answer: Schemas["AnswerView"] }) {
  return (
    <>
      <b><Words>{answer.by}</Words></b> {VERDICTS[answer.verdict] ?? "answered"} this <Time at={answer.at} />
      {answer.reason && <>: <Words>{answer.reason}</Words></>}
    </>
  );
}

const ENDINGS: Record<string, string> = {
  pending: "The answer is recorded. More people must approve before the call runs.",
  deferred: "The answer is deferred. The request stays open.",
  denied: "The call does not run.",
  cancelled: "The request was cancelled. The call does not run.",
  expired: "The time to answer is over. The call does not run.",
  withdrawn: "The call is no longer possible as it was requested.",
};

function endingOf(request: Detail): string {
  if (request.kind !== "confirm") return ENDINGS[request.state] ?? "";
  if (request.state === "approved") return "The call may run once. It runs as soon as the agent waits for it, or makes it again.";
  if (request.state === "consumed") return request.result ? "" : "The call was sent. Its result is not here: it is not over yet, or too long ago.";
  return ENDINGS[request.state] ?? "";
}

/** The answers to a request, what became of its call, and the way on. */
function Ending({ request, onNext }: { request: Detail; onNext?: () => void }) {
  const result = request.result;
  const ending = endingOf(request);
  return (
    <section className="card" aria-label="Answers" role="status">
      <ul className="list">
        {request.answers.map((each, index) => (
          <li key={index}>
            <AnswerLine answer={each} />
          </li>
        ))}
      </ul>
      {ending && <p>{ending}</p>}
      {result && (
        <>
          <div className="bar">
            <OutcomeChip outcome={result.outcome} /> <span className="soft">after {duration(result.duration_ms)}</span>
          </div>
          {result.text !== null && <Code label="Result of the call" value={`${result.text || "The result has no text."}${result.is_cut ? "…" : ""}`} />}
          {result.text === null && <p className="soft">Only the agent and the people who answered read the result.</p>}
        </>
      )}
      <div className="bar">
        {request.trace && (
          <To path={at.trace(request.trace)} className="button">
            Show the whole call
          </To>
        )}
        {onNext && (
          <button type="button" className="button primary" onClick={onNext}>
            Next request
          </button>
        )}
      </div>
    </section>
  );
}

function Decide({ request, onAnswered, onBack }: { request: Detail; onAnswered: () => void; onBack: () => void }) {
  const isOpen = request.may_answer;
  return (
    <div className="decide">
      <div className="head">
        <button type="button" className="button quiet" onClick={onBack} aria-label="Back to the list">
          ←
        </button>
        <h1><Words>{request.summary}</Words></h1>
        <div className="bar">
          <Risk level={request.risk} />
          {isOpen ? <Countdown until={request.expires_at} /> : <Chip tone={APPROVAL_TONES[request.state] ?? ""}>{approvalWord(request.state)}</Chip>}
        </div>
      </div>
      {request.quorum > 1 && (
        <p className="small">
          {request.accepted_count} of {request.quorum} people approved.
        </p>
      )}
      {request.kind === "sign_in" && !request.ended_at && (
        <p>
          The call goes on after a sign-in at {visible(request.server)}. <To path="/accounts">Open the accounts</To>.
        </p>
      )}
      <AnswerButtons request={request} onAnswered={onAnswered} hasShortcuts />
      {!isOpen && request.refusal_reason && <p className="soft">You cannot answer: <Words>{request.refusal_reason}</Words>.</p>}
    </div>
  );
}

/** The buttons of who may answer a request, and the dialog that they open. */
export function AnswerButtons({ request, onAnswered, hasShortcuts = false }: { request: Detail; onAnswered?: () => void; hasShortcuts?: boolean }) {
  const queries = useQueryClient();
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const isOpen = request.may_answer;
  // A sign-in at the provider accepts such a request, and nothing else does.
  const isSignIn = request.kind === "sign_in";
  const takesKeys = isOpen && hasShortcuts;
  const isSettled = useSettled();
  useEffect(() => {
    if (!takesKeys) return;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !areShortcutsOn()) return;
      if (event.key === "a" && !isSignIn) setVerdict("accept");
      else if (event.key === "x") setVerdict("decline");
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [takesKeys, isSignIn]);
  return (
    <>
      {isOpen && (
        <div className="buttons">
          <button type="button" className="button bad" disabled={!isSettled} onClick={() => setVerdict("decline")}>
            Deny {hasShortcuts && <kbd className="phone-hidden">x</kbd>}
          </button>
          {!isSignIn && (
            <button type="button" className="button good" disabled={!isSettled} onClick={() => setVerdict("accept")}>
              Approve {hasShortcuts && <kbd className="phone-hidden">a</kbd>}
            </button>
          )}
        </div>
      )}
      {verdict && (
        <AnswerDialog
          request={request}
          verdict={verdict}
          onClose={() => setVerdict(null)}
          onAnswered={() => {
            void queries.invalidateQueries({ queryKey: ["approvals"] });
            onAnswered?.();
          }}
        />
      )}
    </>
  );
}

const SETTLE_MS = 400;

/** Whether the request has been in view long enough. A second click must not fall on the buttons of the next one. */
function useSettled(): boolean {
  const [isSettled, setSettled] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(true), SETTLE_MS);
    return () => window.clearTimeout(timer);
  }, []);
  return isSettled;
}

function Countdown({ until }: { until: string }) {
  const now = useNow();
  const left = new Date(until).getTime() - now;
  return <Chip tone={left < 60_000 ? "bad" : "warn"}>{left > 0 ? `${duration(left)} left` : "expired"}</Chip>;
}

function AnswerDialog({ request, verdict, onClose, onAnswered }: { request: Detail; verdict: Verdict; onClose: () => void; onAnswered: () => void }) {
  const id = useId();
  const isYes = verdict === "accept";
  const [reason, setReason] = useState("");
  const [isRule, setRule] = useState(false);
  const schema = (request.schema ?? {}) as Schema;
  const needsContent = isYes && WITH_CONTENT.has(request.kind) && request.schema !== null;
  const [content, setContent] = useState<Values>(() => defaults(schema));
  const rule = isYes ? request.rule : null;
  const typed = isYes ? (request.confirmation_word ?? undefined) : undefined;
  const me = useSession().data?.principal;
  const last = request.answers.at(-1);
  const answer = async () => {
    await data(
      api.POST("/api/approvals/{id}/answer", {
        params: { path: { id: request.id } },
        body: { verdict, reason, content: needsContent ? content : {}, remember: false, rule: isRule ? { where: null, expires_at: null } : null },
      }),
    );
    onAnswered();
  };
  // The request ended while the dialog was open, by somebody else or by its time.
  if (!request.may_answer && last?.by !== me)
    return (
      <Dialog title={`No answer is needed: ${brief(request.summary, 120)}`} onClose={onClose}>
        <p role="alert">{last ? <AnswerLine answer={last} /> : (ENDINGS[request.state] ?? `This request is ${request.state}.`)}</p>
        <div className="bar">
          <button type="button" className="button primary" data-focus onClick={onClose}>
            Close
          </button>
        </div>
      </Dialog>
    );
  return (
    <Confirm title={`${isYes ? "Approve" : "Deny"}: ${brief(request.summary, 120)}`} action={isYes ? "Approve" : "Deny"} tone={isYes ? "good" : "bad full"} typed={typed} onConfirm={answer} onClose={onClose}>
      <p>{isYes ? effectOf(request) : "The call does not run. The agent reads your reason."}</p>
      {needsContent && <SchemaFields schema={schema} values={content} onChange={setContent} />}
      <div className="field">
        <label htmlFor={id}>
          Reason <span className="soft">(optional{!isYes && ", the agent can use it"})</span>
        </label>
        <input id={id} value={reason} maxLength={2000} onChange={(event) => setReason(event.target.value)} />
      </div>
      {isYes && !rule && request.rule_refusal && <p className="small soft">No rule is offered: <Words>{request.rule_refusal}</Words>.</p>}
      {rule && (
        <fieldset>
          <legend>Next time</legend>
          <div className="check">
            <input id={`${id}r`} type="checkbox" checked={isRule} onChange={(event) => setRule(event.target.checked)} />
            <label htmlFor={`${id}r`}>Allow such calls without asking, by this grant:</label>
          </div>
          <p className="mono small anywhere">
            {rule.effect} {visible(rule.subject)} {rule.verb} {visible(rule.target)}
            {rule.where_text && ` where ${visible(rule.where_text)}`}
          </p>
        </fieldset>
      )}
    </Confirm>
  );
}

function effectOf(request: Detail): string {
  if (request.kind === "confirm") return request.quorum > 1 ? "Your approval counts. The call runs once when enough people approved it." : "The call runs once, exactly as the request shows it.";
  return "Comity passes your answer on.";
}
