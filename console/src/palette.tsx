// The command palette (Ctrl K) and the list of shortcuts (?).
import { useQuery } from "@tanstack/react-query";
import { Command } from "cmdk";
import { useDeferredValue, useEffect, useRef, useState } from "react";
import { api, data } from "./api/client";
import { at, SCREENS, useGo } from "./navigate";
import { Dialog, showDialog } from "./ui/parts";
import { areShortcutsOn, switchShortcuts } from "./ui/shortcuts";
import { applyTheme } from "./ui/theme";
import { brief } from "./ui/text";

const THEMES = ["light", "dark", "system"] as const;

export function Palette({ onClose, onHelp }: { onClose: () => void; onHelp: () => void }) {
  const go = useGo();
  const element = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const query = useDeferredValue(text.trim());
  const tools = useQuery({
    queryKey: ["tools", "palette", query],
    queryFn: () => data(api.GET("/api/search", { params: { query: { query, limit: 6 } } })),
    enabled: query.length >= 2,
  });
  useEffect(() => showDialog(element.current), []);
  const run = (action: () => void) => () => {
    onClose();
    action();
  };
  // Screens come first and stay where they are when the tools arrive: Enter opens what was seen.
  const fits = (name: string) => name.toLowerCase().includes(text.trim().toLowerCase());
  return (
    <dialog ref={element} aria-label="Go to" onClose={onClose} onCancel={onClose}>
      <Command label="Go to" className="palette" shouldFilter={false}>
        <Command.Input value={text} onValueChange={setText} placeholder="Go to a screen or a tool" data-focus />
        <Command.List>
          <Command.Empty>{query.length < 2 || tools.isSuccess ? "Nothing fits." : tools.isError ? "The tools could not be searched." : "Searching the tools…"}</Command.Empty>
          <Command.Group heading="Screens">
            {SCREENS.filter((each) => fits(each.name)).map((each) => (
              <Command.Item key={each.path} value={`screen ${each.name}`} onSelect={run(() => go(each.path))}>
                {each.name}
              </Command.Item>
            ))}
          </Command.Group>
          {tools.data && tools.data.tools.length > 0 && (
            <Command.Group heading="Tools">
              {tools.data.tools.map((each) => (
                <Command.Item key={each.name} value={`tool ${each.name}`} onSelect={run(() => go(at.tool(each.name)))}>
                  <span className="mono">{brief(each.name, 60)}</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          <Command.Group heading="Appearance and help">
            {THEMES.filter((each) => fits(`Theme: ${each}`)).map((each) => (
              <Command.Item key={each} value={`theme ${each}`} onSelect={run(() => applyTheme(each))}>
                Theme: {each}
              </Command.Item>
            ))}
            {fits("Keyboard shortcuts") && (
              <Command.Item value="keyboard shortcuts" onSelect={run(onHelp)}>
                Keyboard shortcuts <kbd>?</kbd>
              </Command.Item>
            )}
          </Command.Group>
        </Command.List>
      </Command>
    </dialog>
  );
}

const KEYS: [string, string][] = [
  ["Ctrl K", "Go to a screen or a tool"],
  ["/", "Filter the list"],
  ["j, k or arrows", "Move in a list"],
  ["Enter", "Open"],
  ["a", "Approve the open request (asks first)"],
  ["x", "Deny the open request (asks first)"],
  ["p", "Pause or resume live updates"],
  ["?", "This list"],
  ["Escape", "Close"],
];

export function ShortcutHelp({ onClose }: { onClose: () => void }) {
  const [isOn, setOn] = useState(areShortcutsOn());
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <table>
        <tbody>
          {KEYS.map(([key, meaning]) => (
            <tr key={key}>
              <td className="nowrap">
                <kbd>{key}</kbd>
              </td>
              <td>{meaning}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <div className="check">
        <input
          id="shortcuts"
          type="checkbox"
          checked={isOn}
          onChange={(event) => {
            setOn(event.target.checked);
            switchShortcuts(event.target.checked);
          }}
        />
        <label htmlFor="shortcuts">Use single-key shortcuts</label>
      </div>
      <div className="bar">
        <button type="button" className="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
