-- The shop's own tables. They live in the same database as the outbox, so that
-- an order and its jobs are one transaction.
CREATE TABLE orders (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer        text        NOT NULL,
    sku             text        NOT NULL,
    quantity        integer     NOT NULL CHECK (quantity > 0),
    placed_at       timestamptz NOT NULL DEFAULT now(),
    receipt_sent_at timestamptz
);

CREATE TABLE stock (
    sku       text    PRIMARY KEY,
    delivered integer NOT NULL,
    available integer NOT NULL CHECK (available >= 0)
);

INSERT INTO stock (sku, delivered, available)
SELECT sku, 1000000, 1000000
FROM unnest(ARRAY['tea', 'coffee', 'cocoa', 'sugar', 'honey', 'bread', 'butter', 'jam', 'salt', 'pepper', 'rice', 'beans']) AS sku;

-- The effects. On purpose nothing here is unique for an order: if a job had its
-- effect twice, there would be two rows, and the check at the end would see them.
CREATE TABLE receipts (
    order_id bigint      NOT NULL REFERENCES orders,
    sent_at  timestamptz NOT NULL DEFAULT now(),
    sent_by  text        NOT NULL
);
CREATE INDEX ON receipts (order_id);

CREATE TABLE stock_reservations (
    order_id    bigint      NOT NULL REFERENCES orders,
    sku         text        NOT NULL REFERENCES stock,
    quantity    integer     NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT now(),
    reserved_by text        NOT NULL
);
CREATE INDEX ON stock_reservations (order_id);
