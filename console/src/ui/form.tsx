// A form made from a JSON Schema, for the arguments of tools and the questions of servers.
import { useId, useState } from "react";
import { visible } from "./text";

export type Schema = {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  enumNames?: string[];
  oneOf?: (Schema & { const?: unknown })[];
  items?: Schema;
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
};
export type Values = Record<string, unknown>;

const kindOf = (schema: Schema) => (Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type);

/** Return the values that a schema gives by default. */
export function defaults(schema: Schema): Values {
  const found: Values = {};
  for (const [name, each] of Object.entries(schema.properties ?? {})) {
    if (each.default !== undefined) found[name] = each.default;
    else if (kindOf(each) === "object" && each.properties && schema.required?.includes(name)) found[name] = defaults(each);
  }
  return found;
}

export function SchemaFields({
  schema,
  values,
  onChange,
}: {
  schema: Schema;
  values: Values;
  onChange: (values: Values) => void;
}) {
  const set = (name: string, value: unknown) => {
    const { [name]: _, ...rest } = values;
    onChange(value === undefined ? rest : { ...rest, [name]: value });
  };
  return (
    <>
      {Object.entries(schema.properties ?? {}).map(([name, each]) => (
        <Field key={name} name={name} schema={each} isRequired={schema.required?.includes(name) ?? false} value={values[name]} onChange={(value) => set(name, value)} />
      ))}
    </>
  );
}

interface FieldProps {
  name: string;
  schema: Schema;
  isRequired: boolean;
  value: unknown;
  onChange: (value: unknown) => void;
}

function Field(props: FieldProps) {
  const { name, schema, isRequired, value, onChange } = props;
  const id = useId();
  const kind = kindOf(schema);
  const label = visible(schema.title ?? name);
  if (kind === "object" && schema.properties)
    return (
      <fieldset>
        <legend>{label}</legend>
        <SchemaFields schema={schema} values={(value as Values | undefined) ?? {}} onChange={onChange} />
      </fieldset>
    );
  const hint = schema.description ? visible(schema.description) : "";
  const described = hint ? { "aria-describedby": `${id}-hint` } : {};
  if (kind === "boolean")
    return (
      <div className="field">
        <div className="check">
          <input id={id} type="checkbox" checked={value === true} onChange={(event) => onChange(event.target.checked)} {...described} />
          <label htmlFor={id}>{label}</label>
        </div>
        {hint && (
          <span id={`${id}-hint`} className="hint">
            {hint}
          </span>
        )}
      </div>
    );
  return (
    <div className="field">
      <label htmlFor={id}>
        {label} {!isRequired && <span className="soft">(optional)</span>}
      </label>
      <Input {...props} id={id} described={described} />
      {hint && (
        <span id={`${id}-hint`} className="hint">
          {hint}
        </span>
      )}
    </div>
  );
}

function Input({ schema, isRequired, value, onChange, id, described }: FieldProps & { id: string; described: object }) {
  const kind = kindOf(schema);
  const choices = schema.enum?.map((each, place) => [each, schema.enumNames?.[place] ?? String(each)] as const) ?? schema.oneOf?.map((each) => [each.const, each.title ?? String(each.const)] as const);
  if (choices)
    return (
      <select id={id} required={isRequired} value={choices.findIndex(([each]) => each === value)} onChange={(event) => onChange(choices[Number(event.target.value)]?.[0])} {...described}>
        <option value={-1}>Choose…</option>
        {choices.map(([, text], place) => (
          <option key={place} value={place}>
            {visible(text)}
          </option>
        ))}
      </select>
    );
  if (kind === "integer" || kind === "number")
    return (
      <input
        id={id}
        type="number"
        step={kind === "integer" ? 1 : "any"}
        required={isRequired}
        min={schema.minimum}
        max={schema.maximum}
        value={typeof value === "number" ? value : ""}
        onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))}
        {...described}
      />
    );
  if (kind === "string") {
    const types: Record<string, string> = { email: "email", uri: "url", date: "date" };
    return (
      <input
        id={id}
        type={types[schema.format ?? ""] ?? "text"}
        required={isRequired}
        minLength={schema.minLength}
        maxLength={schema.maxLength}
        value={typeof value === "string" ? value : ""}
        onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
        {...described}
      />
    );
  }
  return <JsonInput id={id} isRequired={isRequired} value={value} onChange={onChange} described={described} />;
}

/** A value of any other type, written as JSON. */
function JsonInput({ id, isRequired, value, onChange, described }: { id: string; isRequired: boolean; value: unknown; onChange: (value: unknown) => void; described: object }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value));
  const [isWrong, setWrong] = useState(false);
  const change = (written: string) => {
    setText(written);
    try {
      onChange(written.trim() ? JSON.parse(written) : undefined);
      setWrong(false);
    } catch {
      setWrong(true);
    }
  };
  return (
    <>
      <textarea id={id} required={isRequired} value={text} aria-invalid={isWrong} placeholder="JSON" spellCheck={false} onChange={(event) => change(event.target.value)} {...described} />
      {isWrong && (
        <span className="hint" role="alert">
          This is not valid JSON yet.
        </span>
      )}
    </>
  );
}
