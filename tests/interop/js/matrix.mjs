// A client of the official TypeScript SDKs that goes through the features of servers and says what
// came of each: `matrix/driving.py` in another language, asked and answering in the same way.
//   node matrix.mjs FOLDER < orders.json
// FOLDER is where node_modules is; the mode in the orders is one of v1, v2 and v2-modern.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(`${process.argv[2]}/package.json`);
const orders = JSON.parse(readFileSync(0, 'utf8'));
const isV1 = orders.mode === 'v1';
const isModern = orders.mode === 'v2-modern';

const FEATURE_MS = 20_000;
const CONNECT_MS = 60_000;
const CLOSE_MS = 20_000;

class Silence extends Error {}

function load() {
  if (!isV1) {
    const sdk = require('@modelcontextprotocol/client');
    return { ...sdk, ...require('@modelcontextprotocol/client/stdio') };
  }
  const from = '@modelcontextprotocol/sdk';
  return {
    ...require(`${from}/client/index.js`),
    ...require(`${from}/client/streamableHttp.js`),
    ...require(`${from}/client/sse.js`),
    ...require(`${from}/client/stdio.js`),
    ...require(`${from}/types.js`),
  };
}

const sdk = load();
const CHANGES = {
  tools: 'notifications/tools/list_changed',
  resources: 'notifications/resources/list_changed',
};

function within(ms, work, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Silence(what)), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

class Peer {
  constructor() {
    const capabilities = { elicitation: { form: {} }, sampling: {} };
    const mode = isModern ? { pin: '2026-07-28' } : 'legacy';
    const options = isV1 ? { capabilities } : { capabilities, versionNegotiation: { mode } };
    this.client = new sdk.Client({ name: 'typescript-peer', version: '1.0.0' }, options);
    this.heard = { tools: () => {}, resources: () => {} };
    this.answer('elicitation/create', sdk.ElicitRequestSchema, {
      action: 'accept',
      content: { name: 'you' },
    });
    this.answer('sampling/createMessage', sdk.CreateMessageRequestSchema, {
      role: 'assistant',
      model: 'poet-1',
      content: { type: 'text', text: 'An old silent pond.' },
    });
    this.hear('tools', sdk.ToolListChangedNotificationSchema);
    this.hear('resources', sdk.ResourceListChangedNotificationSchema);
  }

  answer(method, schema, result) {
    this.client.setRequestHandler(isV1 ? schema : method, () => result);
  }

  hear(of, schema) {
    this.client.setNotificationHandler(isV1 ? schema : CHANGES[of], () => this.heard[of]());
  }

  async connect({ over, url, command }) {
    if (over === 'stdio') {
      const [program, ...args] = command;
      const stdio = { command: program, args, stderr: 'ignore' };
      return this.client.connect(new sdk.StdioClientTransport(stdio));
    }
    const Transport = over === 'sse' ? sdk.SSEClientTransport : sdk.StreamableHTTPClientTransport;
    return this.client.connect(new Transport(new URL(url)));
  }

  get era() {
    return !isV1 && this.client.getProtocolEra() === 'modern' ? 'modern' : 'handshake';
  }

  async listed(of) {
    if (of === 'tools') return (await this.client.listTools()).tools.map((tool) => tool.name);
    return (await this.client.listResources()).resources.map((resource) => resource.uri);
  }

  async call(tool, given, options = {}) {
    const params = { name: tool, arguments: given };
    const result = isV1
      ? await this.client.callTool(params, undefined, options)
      : await this.client.callTool(params, options);
    const texts = result.content.filter((part) => part.type === 'text').map((part) => part.text);
    return {
      text: texts.join('\n'),
      structured: result.structuredContent ?? null,
      isError: Boolean(result.isError),
    };
  }

  // Told while it is open: that a list has changed.
  async hearing(of, work) {
    const subscription = this.era === 'modern'
      ? await this.client.listen({ [`${of}ListChanged`]: true })
      : undefined;
    try {
      return await work();
    } finally {
      await subscription?.close();
    }
  }
}

const shown = (answer) => JSON.stringify(answer).slice(0, 300);
const same = (left, right) => JSON.stringify(left) === JSON.stringify(right);

const freshName = () => `new_${randomUUID().slice(0, 8)}`;

// The arguments of a call, with a name that nobody has used yet wherever one is wanted.
function given(plan, fresh) {
  const named = (value) => (typeof value === 'string' ? value.replace('NEW', fresh) : value);
  return Object.fromEntries(Object.entries(plan.arguments).map(([name, value]) => [name, named(value)]));
}

async function list(peer, plan) {
  const listed = await peer.listed('tools');
  if (peer.era !== (plan.era ?? peer.era)) return `wrong: the ${peer.era} era is spoken`;
  return listed.includes(plan.tool) ? undefined : `wrong: ${plan.tool} is not among ${listed}`;
}

async function call(peer, plan) {
  const answer = await peer.call(plan.tool, plan.arguments);
  const said = answer.text.includes(plan.text) && !answer.isError;
  return said ? undefined : `wrong: ${shown(answer)}`;
}

async function structured(peer, plan) {
  const answer = await peer.call(plan.tool, plan.arguments);
  return same(answer.structured, plan.expect) ? undefined : `wrong: ${shown(answer)}`;
}

async function progress(peer, plan) {
  const fresh = freshName();
  const steps = [];
  const onprogress = async (news) => {
    steps.push(news.progress);
    if (plan.then && steps.length === plan.expect.length) {
      // What becomes of the call says whether this arrived.
      await peer.call(plan.then.tool, given(plan.then, fresh)).catch(() => {});
    }
  };
  const answer = await peer.call(plan.tool, given(plan, fresh), { onprogress });
  if (answer.isError) return `wrong: ${shown(answer)}`;
  const heardOf = plan.then ? steps : steps.slice(0, plan.expect.length);
  return same(heardOf, plan.expect) ? undefined : `wrong: heard of the steps ${steps}`;
}

async function cancellation(peer, plan) {
  const witnessed = async () => (plan.witness ? (await peer.call(plan.witness, {})).text : '');
  const before = await witnessed();
  const control = new AbortController();
  const off = 'it was called off';
  try {
    const answer = await peer.call(plan.tool, plan.arguments, {
      signal: control.signal,
      onprogress: () => control.abort(off),
    });
    return `wrong: it answered ${shown(answer)}`;
  } catch (error) {
    if (!control.signal.aborted) throw error;
  }
  const end = Date.now() + FEATURE_MS;
  while (plan.witness && (await witnessed()) === before) {
    if (Date.now() > end) throw new Silence('the server was not told');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const answer = await peer.call(plan.still.tool, plan.still.arguments);
  return answer.isError ? `wrong: afterwards ${shown(answer)}` : undefined;
}

async function listChanged(peer, plan) {
  const fresh = freshName();
  const wanted = plan.appears.replace('NEW', fresh);
  if ((await peer.listed(plan.of)).includes(wanted)) return `wrong: ${wanted} was there before`;
  return peer.hearing(plan.of, async () => {
    let appeared;
    const done = new Promise((resolve, reject) => {
      appeared = async () => {
        const listed = await peer.listed(plan.of).catch(reject);
        if (listed?.includes(wanted)) resolve(undefined);
      };
    });
    peer.heard[plan.of] = appeared;
    const answer = await peer.call(plan.tool, given(plan, fresh));
    return answer.isError ? `wrong: ${shown(answer)}` : done;
  });
}

const FEATURES = {
  list,
  call,
  structured,
  progress,
  cancellation,
  elicitation: call,
  sampling: call,
  list_changed: listChanged,
};

// The kind of a failure, which is compared, and then its words, which are read. Where a server sent
// an error with an HTTP status of its own, the error's code stands in the words.
function told(error) {
  const code = /"error":\{"code":(-?\d+)/.exec(error?.message)?.[1] ?? error?.code;
  const kind = code === undefined ? (error?.name ?? typeof error) : `error ${code}`;
  return `fail: ${error instanceof Silence ? 'silence' : kind}: ${error?.message}`.slice(0, 300);
}

async function attempt(peer, name, plan) {
  try {
    const why = await within(FEATURE_MS, FEATURES[name](peer, plan), name);
    return why === undefined ? 'pass' : `fail: ${why}`;
  } catch (error) {
    return told(error);
  }
}

async function visit(target) {
  const outcomes = {};
  const left = () => Object.keys(FEATURES).filter((name) => name in target.plan && !(name in outcomes));
  while (left().length > 0) {
    const peer = new Peer();
    try {
      await within(CONNECT_MS, peer.connect(target), 'connect');
    } catch (error) {
      for (const name of left()) outcomes[name] = told(error);
    }
    for (const name of left()) {
      outcomes[name] = await attempt(peer, name, target.plan[name]);
      if (outcomes[name] !== 'pass') break;
    }
    if (outcomes.list !== 'pass') {
      for (const name of left()) outcomes[name] = outcomes.list;
    }
    await within(CLOSE_MS, peer.client.close(), 'close').catch(() => {});
  }
  console.log(JSON.stringify({ id: target.id, outcomes }));
}

process.on('unhandledRejection', (error) => console.error('unhandled:', error));

for (const round of orders.rounds) {
  const waiting = [...round];
  const work = async () => {
    while (waiting.length > 0) await visit(waiting.shift());
  };
  await Promise.all(Array.from({ length: orders.together }, work));
}
process.exit(0);
