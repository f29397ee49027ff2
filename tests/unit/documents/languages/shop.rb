require "json"
require_relative "tax/rates"

module Shop
  class Cart < Base
    def initialize(items)
      @items = items
    end

    def total
      round_up(@items.sum { |item| item.price }) + Tax::Rates.of(self)
    end

    def self.empty
      new([])
    end

    def print_total
      self.total
      puts JSON.dump(total)
    end
  end
end
