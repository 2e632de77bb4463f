// Topics: a live timeline threaded by correlation, proposals as cards, members and capabilities.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useMemo } from "react";
import { api, data, type Schemas } from "../api/client";
import { MAX_PAGES, usePages } from "../api/pages";
import { at, To } from "../navigate";
import { Chip, Code, Loading, NoRows, Problem, Risk, Time, Words, type Tone } from "../ui/parts";
import { visible } from "../ui/text";
import { AnswerButtons } from "./approval";
import { APPROVAL_TONES } from "./approval-tones";

type Envelope = Schemas["EnvelopeView"];

export function Topics() {
  const { topic } = useParams({ strict: false }) as { topic?: string };
  const list = useQuery({ queryKey: ["topics", "list"], queryFn: () => data(api.GET("/api/topics")) });
  if (list.isPending) return <Loading what="topics" />;
  if (!list.data) return <Problem error={list.error} retry={() => void list.refetch()} />;
  if (topic) return <Topic key={topic} topic={topic} />;
  return (
    <div className="screen">
      <h1>Topics</h1>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {list.data.topics.length === 0 ? (
        <NoRows list={list} what="topics">
          <span>
            No topics are open. A member opens one when it joins: <code>comity topics join NAME</code>
          </span>
        </NoRows>
      ) : (
        <div className="tiles">
          {list.data.topics.map((each) => (
            <To key={each.topic} path={at.topic(each.topic)} className="tile">
              <b className="anywhere">{visible(each.topic)}</b>
              <span className="soft">{each.members} {each.members === 1 ? "member" : "members"}</span>
            </To>
          ))}
        </div>
      )}
    </div>
  );
}

function Topic({ topic }: { topic: string }) {
  const found = useQuery({ queryKey: ["topics", topic], queryFn: () => data(api.GET("/api/topics/{topic}", { params: { path: { topic } } })) });
  const messages = useEnvelopes(topic);
  return (
    <div className="screen">
      <div className="head">
        <h1><Words>{topic}</Words></h1>
        <To path="/topics" className="button">All topics</To>
      </div>
      <Problem error={found.error} retry={() => void found.refetch()} />
      <div className="topic">
        <Proposals topic={topic} envelopes={messages.rows} />
        <Timeline messages={messages} />
        <Members members={found.data?.participants ?? []} />
      </div>
    </div>
  );
}

function Members({ members }: { members: Schemas["MemberView"][] }) {
  return (
    <section className="card members" aria-label="Members">
      <h2>Members</h2>
      <ul className="rowlist">
        {members.map((each) => (
          <li key={each.participantId}>
            <b><Words>{each.participantId}</Words></b>
            <span className="small soft">
              {each.connectedAt && <>since <Time at={each.connectedAt} /></>}
              {each.mode && `, receives ${each.mode === "all" ? "all messages" : "its own messages"}`}
              {each.node && ` on ${visible(each.node.replace(/-[0-9a-f]{16}$/, ""))}`}
            </span>
            <span className="capabilities">
              <span className="hidden-visually">May send: </span>
              {each.capabilities.length === 0 && <span className="small soft">may send nothing</span>}
              {each.capabilities.map((capability) => (
                <code key={capability}>{visible(capability)}</code>
              ))}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

const envelopesOf = (page: Schemas["EnvelopePage"]) => page.envelopes;

function useEnvelopes(topic: string) {
  return usePages({
    queryKey: ["topics", topic, "envelopes"],
    read: (cursor: number) => data(api.GET("/api/topics/{topic}/envelopes", { params: { path: { topic }, query: { cursor } } })),
    first: 0,
    next: (page) => (page.next ? Number(page.next) : undefined),
    rowsOf: envelopesOf,
    maxPages: MAX_PAGES,
  });
}

function Timeline({ messages }: { messages: ReturnType<typeof useEnvelopes> }) {
  const { list, rows: envelopes, hasMore, readMore, isCut } = messages;
  const threads = useMemo(() => threaded(envelopes), [envelopes]);
  return (
    <section aria-label="Timeline" className="list timeline">
      <Problem error={list.error} retry={() => void list.refetch()} />
      {threads.length === 0 && (
        <NoRows list={list} what="messages">
          No messages yet.
        </NoRows>
      )}
      <ol className="list">
        {threads.map(([first, ...replies]) => (
          <li key={first!.id} className="card">
            <ol className="thread">
              <Message envelope={first!} />
              {replies.map((each) => (
                <Message key={each.id} envelope={each} isReply />
              ))}
            </ol>
          </li>
        ))}
      </ol>
      {hasMore && (
        <button type="button" className="button" onClick={readMore}>
          Older messages
        </button>
      )}
      {isCut && <p className="soft">Older messages are not shown here.</p>}
    </section>
  );
}

/** Group envelopes by what they answer, directly or through other envelopes. The newest thread comes first. */
export function threaded(envelopes: Envelope[]): Envelope[][] {
  const known = new Map(envelopes.map((each) => [each.id, each]));
  const threads = new Map<string, Envelope[]>();
  for (const each of envelopes) {
    const root = rootOf(each, known);
    const thread = threads.get(root) ?? [];
    thread.push(each);
    threads.set(root, thread);
  }
  return [...threads].map(([root, thread]) => thread.sort((one, other) => Number(other.id === root) - Number(one.id === root) || one.number - other.number));
}

/** The first envelope of a thread. A reply can arrive before what it answers, and members can send a circle. */
function rootOf(envelope: Envelope, known: Map<string, Envelope>): string {
  const seen = new Set<string>();
  let root = envelope;
  for (let next: Envelope | undefined = root; next && !seen.has(next.id); next = known.get(root.correlation_id ?? "")) {
    seen.add(next.id);
    root = next;
  }
  return root.id;
}

const familyOf = (envelope: Envelope) => envelope.kind.split(":", 1)[0]!;

type Payload = { text?: unknown; message?: unknown; method?: unknown; params?: { name?: unknown; arguments?: unknown }; result?: { content?: { text?: unknown }[] } } | null;

/** The words of a payload for people, if it has any. */
function wordsOf(envelope: Envelope): string | null {
  const payload = envelope.payload as Payload;
  const parts = Array.isArray(payload?.result?.content) ? payload.result.content.map((each) => each?.text) : [];
  const found = envelope.kind === NOTICE ? payload?.message : parts.length > 0 ? parts.join("\n") : payload?.text;
  return typeof found === "string" ? found : null;
}

const hasMembers = (value: unknown) => value !== undefined && value !== null && (typeof value !== "object" || Object.keys(value).length > 0);

/** What a request or proposal asks for. */
function callOf(envelope: Envelope): string {
  const payload = envelope.payload as Payload;
  const name = payload?.params?.name;
  return visible(typeof name === "string" ? name : typeof payload?.method === "string" ? payload.method : "a call");
}

function Message({ envelope, isReply = false }: { envelope: Envelope; isReply?: boolean }) {
  const words = wordsOf(envelope);
  const family = familyOf(envelope);
  const given = (envelope.payload as Payload)?.params?.arguments;
  return (
    <li className={isReply ? "reply" : ""}>
      <div className="bar">
        <b><Words>{envelope.sender}</Words></b>
        <Chip title={visible(envelope.kind)}>{visible(family.replace(/^(mcp|system)\//, ""))}</Chip>
        <span className="soft small">
          <Time at={envelope.ts} />
          {envelope.to.length > 0 && ` to ${visible(envelope.to.join(", "))}`}
        </span>
      </div>
      {words !== null ? (
        <p><Words>{words}</Words></p>
      ) : CALLS.has(family) ? (
        <>
          <p className="mono anywhere">{callOf(envelope)}</p>
          {hasMembers(given) && <Code label={`Arguments of ${callOf(envelope)}`} value={given} />}
        </>
      ) : (
        <Code label={`Message of ${visible(envelope.sender)}`} value={envelope.payload} />
      )}
    </li>
  );
}

const NOTICE = "system/notice";
const GATEWAY = "system:gateway";
const INBOX = "system:approvals";
const CALLS = new Set(["mcp/request", "mcp/proposal"]);
const ENDINGS: Record<string, [Tone, string]> = {
  "mcp/response": ["good", "answered"],
  "mcp/request": ["good", "fulfilled"],
  "mcp/reject": ["bad", "rejected"],
  "mcp/withdraw": ["", "withdrawn"],
};

/** The approval request of a proposal. Only envelopes of the gateway itself can name it. */
function approvalOf(proposal: Envelope, envelopes: Envelope[]): string | null {
  const notice = envelopes.find((each) => each.sender === GATEWAY && each.kind === NOTICE && each.correlation_id === proposal.id);
  const given = (proposal.payload as Payload)?.params?.arguments as { approval?: unknown } | undefined;
  const named = proposal.sender === INBOX ? given?.approval : (notice?.payload as { approval?: unknown } | null)?.approval;
  return typeof named === "string" ? named : null;
}

/** Each proposal as a card: what became of it, and the buttons of who may answer it. */
function Proposals({ topic, envelopes }: { topic: string; envelopes: Envelope[] }) {
  const proposals = envelopes.filter((each) => familyOf(each) === "mcp/proposal");
  return (
    <section className="card proposals" aria-label="Proposals">
      <h2>Proposals</h2>
      {proposals.length === 0 && <p className="soft">No member proposed a call lately.</p>}
      <ul className="list">
        {proposals.map((each) => (
          <Proposal key={each.id} topic={topic} proposal={each} envelopes={envelopes} />
        ))}
      </ul>
    </section>
  );
}

function Proposal({ topic, proposal, envelopes }: { topic: string; proposal: Envelope; envelopes: Envelope[] }) {
  const id = approvalOf(proposal, envelopes);
  const found = useQuery({
    queryKey: ["approvals", "one", id],
    queryFn: () => data(api.GET("/api/approvals/{id}", { params: { path: { id: id! } } })),
    enabled: id !== null,
    retry: false,
  });
  const about = found.data?.about as { topic?: unknown; proposal?: unknown } | undefined;
  const isItsOwn = proposal.sender === INBOX || (about?.topic === topic && about.proposal === proposal.id);
  const request = isItsOwn ? found.data : undefined;
  const answer = envelopes.find((other) => other.correlation_id === proposal.id && familyOf(other) in ENDINGS);
  const [tone, words] = request ? [APPROVAL_TONES[request.state] ?? "", STATE_WORDS[request.state] ?? request.state] : answer ? ENDINGS[familyOf(answer)]! : ["warn", "open"];
  const given = (proposal.payload as Payload)?.params?.arguments;
  return (
    <li>
      <div className="card" role="group" aria-label={`Proposal of ${visible(proposal.sender)}: ${callOf(proposal)}`}>
        <div className="head">
          <h3 className="mono">{callOf(proposal)}</h3>
          <Chip tone={tone as Tone}>{words}</Chip>
          {request?.risk && <Risk level={request.risk} />}
        </div>
        <span className="small soft">
          <Words>{proposal.sender}</Words>
          {proposal.to.length > 0 && ` to ${visible(proposal.to.join(", "))}`}, <Time at={proposal.ts} />
        </span>
        {hasMembers(given) ? <Code label={`Arguments of the proposal ${callOf(proposal)}`} value={given} /> : <span className="small soft">without arguments</span>}
        {request && <AnswerButtons request={request} />}
        {request && (
          <To path={at.approval(request.id)} className="small">
            Open the request
          </To>
        )}
      </div>
    </li>
  );
}

const STATE_WORDS: Record<string, string> = { pending: "waits for a person", deferred: "waits for a person", consumed: "approved" };
