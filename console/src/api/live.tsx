// The event stream of hints. A hint names what changed; the queries of that topic are read again.
import { useQueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { TopicRefresher } from "./refresh";

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
    const source = new EventSource("/api/stream");
    const refresher = new TopicRefresher((topic) => queries.invalidateQueries({ queryKey: [topic] }));
    const take = (event: MessageEvent<string>) => {
      const hint = readHint(event.data);
      if (hint === null) return;
      for (const listener of listeners.current) listener(hint);
      refresher.add(hint.topic);
    };
    source.onopen = () => setState("live");
    source.onerror = () => setState("lost");
    source.onmessage = take;
    source.addEventListener("hint", take as EventListener);
    return () => {
      source.close();
      refresher.stop();
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
