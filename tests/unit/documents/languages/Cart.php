<?php
namespace Shop;

use Shop\Tax\Rates;
use Vendor\Log as L;
require_once __DIR__ . '/lib/helpers.php';
require 'lib/money.php';

interface Priced { public function total(): int; }
trait Loud { function shout() { return strtoupper('x'); } }
enum Kind: string { case A = 'a'; }

class Cart extends Base implements Priced
{
    public function total(): int
    {
        $sum = array_sum($this->prices());
        return round_up($sum) + Rates::of($this) + parent::total() + (new Rates())->x();
    }
    private function prices(): array { return []; }
    public static function make(): self { return new self(); }
}

function round_up($x) { return ceil($x); }
