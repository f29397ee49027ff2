CREATE TABLE shop.customer (id INT PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id INT, customer INT REFERENCES customer(id));
CREATE VIEW big_orders AS SELECT id, round_up(total) FROM orders WHERE total > 100;
CREATE INDEX orders_total ON orders(total);
CREATE FUNCTION round_up(x NUMERIC) RETURNS NUMERIC AS $$
  SELECT ceil(x);
$$ LANGUAGE sql;
CREATE OR REPLACE FUNCTION add(a integer, b integer) RETURNS integer LANGUAGE SQL RETURN a + helper(b);
CREATE MATERIALIZED VIEW mv AS SELECT 1;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION add();
