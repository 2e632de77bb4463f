// The event stream of hints. A hint names what changed; the queries of that topic are read again.
import { useQueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { TopicRefresher } from "./refresh";

const LEAST_RECONNECT_MS = 2_000;
/** Browsers that lost the same gateway do not come back at the same moment. */
const RECONNECT_JITTER_MS = 3_000;
const EVERY_TOPIC = "";
/** A changed definition of a tool also changes what the lists of servers count, and a request what the overview counts. */
const ALSO_READ: Record<string, string[]> = { tools: ["servers"], approvals: ["metrics"] };

type Connection = "connecting" | "live" | "lost" | "paused";
type Listener = (hint: Hint) => void;
export type Hint = { topic: string; [member: string]: unknown };

interface Live {
  connection: Connection;
  setPaused(paused: boolean): void;
  listen(listener: Listener): () => void;
}

const LiveContext = createContext<Live>({ connection: "connecting", setPaused() {}, listen: () => () => {} });

export function LiveProvider({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const [state, setState] = useState<Connection>("connecting");
  const [isPaused, setPaused] = useState(false);
  const listeners = useRef(new Set<Listener>());

  useEffect(() => {
    if (isPaused) return;
    const refresher = new TopicRefresher((topic) => queries.invalidateQueries(topic === EVERY_TOPIC ? {} : { queryKey: [topic] }));
    let source: EventSource;
    let timer: number | undefined;
    const take = (event: MessageEvent<string>) => {
      const hint = readHint(event.data);
      if (hint === null) return;
      for (const topic of [hint.topic, ...(ALSO_READ[hint.topic] ?? [])]) refresher.add(topic);
      for (const listener of listeners.current) callListener(listener, hint);
    };
    // A browser gives up after an answer other than 200, and does not say which one it was. With
    // ended credentials, reading the session leads to the sign-in.
    const reconnectLater = () => {
      source.close();
      setState("lost");
      void queries.invalidateQueries({ queryKey: ["session"] });
      window.clearTimeout(timer);
      timer = window.setTimeout(connect, LEAST_RECONNECT_MS + Math.random() * RECONNECT_JITTER_MS);
    };
    const connect = () => {
      source = new EventSource("/api/stream");
      source.onopen = () => {
        setState("live");
        // The gateway does not repeat the hints from before the stream was open.
        refresher.add(EVERY_TOPIC);
      };
      source.onerror = () => {
        if (source.readyState === EventSource.CLOSED) reconnectLater();
        else setState("lost");
      };
      source.onmessage = take;
      source.addEventListener("hint", take as EventListener);
      source.addEventListener("end", reconnectLater);
    };
    connect();
    return () => {
      window.clearTimeout(timer);
      source.close();
      refresher.stop();
      setState("connecting");
    };
  }, [isPaused, queries]);

  const live = useMemo<Live>(
    () => ({
      connection: isPaused ? "paused" : state,
      setPaused,
      listen(listener) {
        listeners.current.add(listener);
        return () => listeners.current.delete(listener);
      },
    }),
    [isPaused, state],
  );
  return <LiveContext.Provider value={live}>{children}</LiveContext.Provider>;
}

/** Call a listener whose failure is reported, and stops neither the others nor the reading. */
function callListener(listener: Listener, hint: Hint) {
  try {
    listener(hint);
  } catch (problem) {
    reportError(problem);
  }
}

function readHint(text: string): Hint | null {
  try {
    const found: unknown = JSON.parse(text);
    const isHint = typeof found === "object" && found !== null && typeof (found as Hint).topic === "string";
    return isHint ? (found as Hint) : null;
  } catch {
    return null;
  }
}

export const useLive = () => useContext(LiveContext);
