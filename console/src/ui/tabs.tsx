import { Tabs as Radix } from "radix-ui";
import { useEffect, useRef, type ReactNode } from "react";

export type Tab = { id: string; name: string; count?: number; content: () => ReactNode };

/** Tabs whose state is in the address, so that each can be linked to. */
export function Tabs({ label, tabs, value, onChange }: { label: string; tabs: Tab[]; value: string; onChange: (id: string) => void }) {
  const chosen = tabs.find((each) => each.id === value) ?? tabs[0]!;
  const list = useRef<HTMLDivElement>(null);
  // On a phone the row of tabs is wider than the screen.
  useEffect(() => {
    const row = list.current;
    const tab = row?.querySelector<HTMLElement>("[data-state=active]");
    if (row && tab) row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
  }, [chosen.id]);
  return (
    <Radix.Root value={chosen.id} onValueChange={onChange}>
      <Radix.List ref={list} className="tabs" aria-label={label}>
        {tabs.map((each) => (
          <Radix.Trigger key={each.id} value={each.id}>
            {each.name}
            {each.count ? <span className="soft"> {each.count}</span> : null}
          </Radix.Trigger>
        ))}
      </Radix.List>
      <Radix.Content className="tabpanel" value={chosen.id}>
        {chosen.content()}
      </Radix.Content>
    </Radix.Root>
  );
}
